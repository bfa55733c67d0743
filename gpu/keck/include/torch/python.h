// Stands in for the header of this name in PyTorch.
#pragma once
#include "keck/dispatch.h"
#if !defined(__CUDACC__) || defined(KECK_BINDS)
#include "keck/bind.h"
#endif
