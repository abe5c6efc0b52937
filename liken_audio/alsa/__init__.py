"""The kernel's sound cards, read by ioctl: no sound server, no udev and no /proc is needed."""
