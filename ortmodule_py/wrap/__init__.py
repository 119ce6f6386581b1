"""Makes ORTModule behave like the module that it wraps."""
