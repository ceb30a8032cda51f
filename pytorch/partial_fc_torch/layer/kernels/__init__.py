"""Both passes as fused kernels in Triton: each center and each state is read and written once or twice a step."""
