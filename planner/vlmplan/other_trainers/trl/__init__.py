"""TRL's trainers: their configurations, and programs that build them."""
