"""What a policy has learned, measured."""
