"""The elastic state machine and what it decides with: pure, events in, actions out."""
