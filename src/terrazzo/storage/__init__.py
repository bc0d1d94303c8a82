"""Files that are checked before they are read: arrays and records, set-ups, checkpoints."""
