# CMake reads this before Horovod's own lists (CMAKE_TOOLCHAIN_FILE). It makes the build faster and more reliable.

# Horovod builds "RelWithDebInfo"; without debugging symbols it compiles in two thirds of the time.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG" CACHE STRING "")

# MXNet and MPI are found by their places relative to the library of Horovod, before the absolute paths of this clone.
if(DEFINED ENV{HOROVOD_RELOCATABLE})
    set(CMAKE_SHARED_LINKER_FLAGS_INIT "-Wl,-rpath,'$ORIGIN/../../mxnet:$ORIGIN/../../../..'")
    set(CMAKE_MODULE_LINKER_FLAGS_INIT "${CMAKE_SHARED_LINKER_FLAGS_INIT}")
endif()

# For a CPU build of MXNet, nothing is built with CUDA.
if(NOT DEFINED ENV{HOROVOD_CUDA_HOME})
    # CMake would still test an installed nvcc, which takes half a minute, and fails if nvcc and the host compiler are
    # incompatible.
    set(CMAKE_CUDA_COMPILER "")
    set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit TRUE)
    # Compiling files together reads their headers once and halves the CPU time. Not tried with CUDA.
    set(CMAKE_UNITY_BUILD ON)
    set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)
    set(CMAKE_PROJECT_gloo_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/gloo-build.cmake")
endif()
