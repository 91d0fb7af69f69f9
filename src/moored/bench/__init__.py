"""The measurements behind moored's figures."""
