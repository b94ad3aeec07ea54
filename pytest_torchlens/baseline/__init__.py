"""What a model computed last time, and what differs now."""
