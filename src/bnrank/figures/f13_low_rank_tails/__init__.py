"""F13: linear last layers of rank one."""
