"""Recipes: tables and figures of papers from verbs, their cost beforehand, the demo, the page of results."""
