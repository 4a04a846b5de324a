"""Pictures and clips through the vision tower of Kimi K3 (MoonViT-V2)."""
