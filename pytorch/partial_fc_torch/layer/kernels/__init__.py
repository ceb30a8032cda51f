"""Both passes with Triton kernels, for chunks of centers that stay in a GPU's L2 cache."""
