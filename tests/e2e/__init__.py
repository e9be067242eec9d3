"""The whole suite on one real stack. A package, so that the stack lives exactly as long as these tests."""
