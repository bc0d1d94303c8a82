"""What every part runs on: devices, compiled code, threads, signals, progress."""
