"""The pages for people: rendered here, with nothing from elsewhere, and useful without JavaScript."""
