// Stands in for the header of this name in PyTorch.
#pragma once
#include "keck/base.h"
