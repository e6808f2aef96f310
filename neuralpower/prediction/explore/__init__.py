"""What if: many configurations predicted from few traces, and two of them compared."""
