"""What ranks and hosts share: launcher variables, collectives, consistency, heartbeat, rank status, watchdog."""
