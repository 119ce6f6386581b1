"""What a release consists of: wheels, the C++ library, the source distribution, and their checks."""
