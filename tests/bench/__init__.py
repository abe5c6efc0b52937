"""The figures that this product promises, measured on the real parts: `make bench`."""
