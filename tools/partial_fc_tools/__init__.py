"""Tools that run beside a training: no trainer imports them."""
