"""Both passes as fused Triton kernels, which read and write each center and each state once or twice a step."""
