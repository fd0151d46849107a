"""What tests share: a harness around the engine, readers of its streams, and the invariants of a whole log."""
