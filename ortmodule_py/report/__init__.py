"""Reports, tables and pictures for the user."""
