"""What a person reads: the only place that scales units."""
