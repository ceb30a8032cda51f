# Read by CMake at the begin of Horovod's Gloo. Larger batches would have allreduce.cc and allreduce_local.cc in one, which
# define ReductionFunction twice.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 4)
