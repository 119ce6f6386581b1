"""What every other package stands on: errors, devices, state of torch."""
