"""What a user may choose: arguments and environment variables."""
