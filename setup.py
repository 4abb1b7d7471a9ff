"""Build the native statistics engine where there is a compiler; without one nndiff uses NumPy."""

from __future__ import annotations

import os
import sys
from glob import glob

from setuptools import Extension, setup

FOLDER = "src/nndiff/stats/native"
# fp-contract: a product and a sum that the compiler joins on its own would round differently from NumPy
FLAGS = [] if sys.platform == "win32" else ["-std=gnu11", "-O3", "-ffp-contract=off", "-pthread"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g", "-O1"]
if os.environ.get("NNDIFF_SANITIZE"):
    FLAGS += SANITIZE

setup(
    ext_modules=[
        Extension(
            "nndiff.stats._native",
            sources=sorted(glob(f"{FOLDER}/*.c")),
            depends=sorted(glob(f"{FOLDER}/*.h")),
            extra_compile_args=FLAGS,
            extra_link_args=FLAGS,
            optional=True,
        )
    ]
)
