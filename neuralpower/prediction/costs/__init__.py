"""What a pass costs: joules, money, carbon, for each token, image or step."""
