"""An NVIDIA GPU as the device under test."""
