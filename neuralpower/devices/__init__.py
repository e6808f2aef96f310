"""What a device is: the machine at hand."""
