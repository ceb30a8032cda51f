"""IJB-B and IJB-C, 1:1 and 1:N, by any model that makes embeddings of faces. Needs neither MXNet nor Horovod."""
