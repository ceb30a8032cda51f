# Read by CMake before Horovod's own lists (CMAKE_TOOLCHAIN_FILE), to make its build shorter and surer.

# Horovod builds "RelWithDebInfo"; without the debugging symbols it compiles in two thirds of the time.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG" CACHE STRING "")

# Beside a CPU MXNet nothing is built with CUDA, but an nvcc that is there would be tried out all the same: that takes
# half a minute, and fails where nvcc and the host compiler do not fit each other.
if(NOT DEFINED ENV{HOROVOD_CUDA_HOME})
    set(CMAKE_CUDA_COMPILER "")
    set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit TRUE)
endif()
