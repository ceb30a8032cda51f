"""What ranks and hosts need of each other besides collectives: variables of launchers, agreement, watchdog."""
