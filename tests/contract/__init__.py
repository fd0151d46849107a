"""The promises P1 to P18 by number, through the engine's public interface, over every store."""
