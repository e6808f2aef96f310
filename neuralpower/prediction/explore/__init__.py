"""What if: many configurations predicted from few traces, two of them compared, the largest that fits."""
