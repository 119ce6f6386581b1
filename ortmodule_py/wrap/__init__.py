"""How ORTModule looks like the module that it wraps."""
