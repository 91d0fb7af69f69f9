"""Where arrays are, and putting them where they should be; public JAX API only.

Two verbs: ``where(tree)`` tells, and moves nothing; ``put(tree, where)`` commits a whole
pytree, and verifies it. JAX is imported when one of them is called.
"""

from __future__ import annotations

from moored.placement.putting import put
from moored.placement.table import Placement, Row
from moored.placement.telling import where

__all__ = ["Placement", "Row", "put", "where"]
