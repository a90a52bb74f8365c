"""The machine: device, precision, cores, memory, processes, random numbers."""
