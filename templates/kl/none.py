"""No KL: there is no reference policy."""
