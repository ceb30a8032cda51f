# Read by CMake before Horovod's own lists (CMAKE_TOOLCHAIN_FILE), to make its build faster and more reliable.

# Horovod builds "RelWithDebInfo"; without the debugging symbols it compiles in two thirds of the time.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG" CACHE STRING "")

# With a CPU MXNet nothing is built with CUDA, but CMake would still test an installed nvcc: that takes half a minute,
# and fails if nvcc and the host compiler are incompatible.
if(NOT DEFINED ENV{HOROVOD_CUDA_HOME})
    set(CMAKE_CUDA_COMPILER "")
    set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit TRUE)
endif()
