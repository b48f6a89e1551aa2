"""Workers: how they are started, their ranks, and how they communicate."""
