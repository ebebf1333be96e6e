"""onnxruntime-genai's Python module, by Capstan (capstan.genai).

The wheel has this file beside `capstan`, as a module and not as a package: where the native package is installed, too,
Python finds that one first. It is not next to `capstan` in the sources, where tests import the native package.
"""

import sys

from capstan import genai

sys.modules[__name__] = genai
sys.modules[f"{__name__}.onnxruntime_genai"] = genai
