# CMake reads this at the beginning of Horovod's Gloo. A larger batch would contain both allreduce.cc and
# allreduce_local.cc, which both define ReductionFunction.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 4)
