"""What a user sees: reports, tables and pictures."""
