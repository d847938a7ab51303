"""What clients ask for about topics and configurations, and whether they may."""
