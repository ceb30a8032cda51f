"""IJB-B and IJB-C, 1:1 and 1:N, for any face embedding model. Needs neither MXNet nor Horovod."""
