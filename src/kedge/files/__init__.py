"""What files were: their states, their content by its hash, what a tree holds, and how a state is brought back."""
