"""Spreadsheets of Excel as tables (`.xlsx`)."""
